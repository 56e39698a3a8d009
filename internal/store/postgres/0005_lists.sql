-- expand: older versions get the same values

-- The lists in statements are short: by the default of 1000 rows, the planner scans the
-- tables that they select from.
ALTER FUNCTION json_each(text) ROWS 16;
