-- expand: older versions pin nothing and ignore the table

-- Accepted tool definitions, one row for each tool of each configured server,
-- and beside each the definition that the server offers if that is another.
-- Fingerprints are "sha256:<hex>" of the definition bytes; times are Unix
-- milliseconds; offered is '' while nothing waits to be accepted.
CREATE TABLE pins (
	server              TEXT NOT NULL,
	tool                TEXT NOT NULL,
	accepted            TEXT NOT NULL,
	accepted_definition BLOB NOT NULL,
	accepted_at         INTEGER NOT NULL,
	offered             TEXT NOT NULL DEFAULT '',
	offered_definition  BLOB,
	offered_at          INTEGER NOT NULL DEFAULT 0,
	PRIMARY KEY (server, tool)
) STRICT;
