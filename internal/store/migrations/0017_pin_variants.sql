-- expand: older versions withhold definitions for some clients only, and ignore the table

-- The pins of definitions that a server offers only to some clients: condition says to
-- which (registry/upstream.Condition). The pins of those for all clients stay in pins, whose
-- columns these are.
CREATE TABLE pin_variants (
	server              TEXT NOT NULL,
	tool                TEXT NOT NULL,
	condition           TEXT NOT NULL,
	accepted            TEXT NOT NULL,
	accepted_definition BLOB NOT NULL,
	accepted_at         INTEGER NOT NULL,
	offered             TEXT NOT NULL DEFAULT '',
	offered_definition  BLOB,
	offered_at          INTEGER NOT NULL DEFAULT 0,
	PRIMARY KEY (server, tool, condition)
) STRICT;
