-- expand: older versions count no calls, and ignore the table

-- How many calls of each minute ended, by what the policy said of them. begin is in nanoseconds
-- since 1970. Minutes are kept for a day.
CREATE TABLE call_minutes (
	owner  TEXT NOT NULL,
	begin  BIGINT NOT NULL,
	effect TEXT NOT NULL,
	calls  BIGINT NOT NULL,
	PRIMARY KEY (begin, effect, owner)
);
