-- expand: older versions have no index of calls, and ignore the tables

-- Blocks of calls (audit/index). owner is the trail that they were read from. Times are
-- nanoseconds since 1970: of the oldest and the newest call, and when the last of them was added.
CREATE TABLE call_blocks (
	id     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	owner  TEXT NOT NULL,
	size   BIGINT NOT NULL,
	oldest BIGINT NOT NULL,
	newest BIGINT NOT NULL,
	added  BIGINT NOT NULL
);

-- The terms and rows of each block, in parts. id is 256 times the block, and the number of the part.
CREATE TABLE call_parts (
	id   BIGINT PRIMARY KEY,
	data BYTEA NOT NULL
);

ALTER TABLE call_parts ALTER COLUMN data SET STORAGE EXTERNAL; -- it is compact

-- How far the chains of a trail were read: until is the last record that is in the index, start the
-- one after which to begin, since later outcomes belong to decisions from there on. first is the oldest record
-- that the trail had.
CREATE TABLE call_chains (
	chain TEXT PRIMARY KEY,
	owner TEXT NOT NULL,
	start BIGINT NOT NULL,
	until BIGINT NOT NULL,
	first BIGINT NOT NULL
);

-- How far each writer is. beat is when it last said so, behind how old its last record was then while
-- there were more, in nanoseconds.
CREATE TABLE call_writers (
	owner  TEXT PRIMARY KEY,
	beat   BIGINT NOT NULL,
	behind BIGINT NOT NULL
);
