-- expand: older versions count no calls

-- How many calls of each minute ended, by what the policy said of them. begin is in nanoseconds
-- since 1970. Minutes are kept for a day.
CREATE TABLE call_minutes (
	owner  TEXT NOT NULL,
	begin  INTEGER NOT NULL,
	effect TEXT NOT NULL,
	calls  INTEGER NOT NULL,
	PRIMARY KEY (begin, effect, owner)
) STRICT, WITHOUT ROWID;
