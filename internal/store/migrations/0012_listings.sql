-- expand: older versions recall no lists and ignore the table

-- What each configured server listed last, and how it introduced itself: offered while
-- the server starts again. tools is the array of its definitions, byte for byte; origin is
-- how mcp.json said that the server is reached, as JSON. What is accepted of a server is
-- in pins.
CREATE TABLE listings (
	server       TEXT PRIMARY KEY,
	origin       TEXT NOT NULL,
	tools        BLOB NOT NULL,
	capabilities BLOB,
	info         BLOB,
	instructions TEXT NOT NULL
) STRICT;
