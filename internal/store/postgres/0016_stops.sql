-- expand: older versions do not stop calls, and ignore the tables

-- The emergency stops that are in force (policy/stop). kind is principal, role, tool, server or
-- all; name is '' for all. until is when a stop ends by itself, 0 = when somebody resumes. The
-- trail has the stops that were.
CREATE TABLE stops (
	id      TEXT PRIMARY KEY,
	kind    TEXT NOT NULL,
	name    TEXT NOT NULL,
	reason  TEXT NOT NULL,
	subject TEXT NOT NULL,
	at      BIGINT NOT NULL,
	until   BIGINT NOT NULL
);

-- Which processes enforce a stop: replica is the ID of an instance. Times are nanoseconds since
-- 1970.
CREATE TABLE stop_confirmations (
	stop    TEXT NOT NULL,
	replica TEXT NOT NULL,
	at      BIGINT NOT NULL,
	PRIMARY KEY (stop, replica)
);
