-- expand: older versions send no notices and ignore the table

-- The outbox of notices about tickets: one row for each change and channel, made
-- in the transaction of the change, and deleted when it is delivered. channel is
-- a digest of where it goes, for addresses can be secrets. Times are nanoseconds
-- since 1970, by the wall clock. due is when it may next be tried; while it is
-- being tried, when that try counts as lost. No try begins after until. A dead
-- row is one that was given up.
CREATE TABLE notices (
  seq     INTEGER PRIMARY KEY,
  id      TEXT    NOT NULL UNIQUE,
  channel TEXT    NOT NULL,
  ticket  TEXT    NOT NULL REFERENCES approvals (id),
  body    BLOB    NOT NULL,
  until   INTEGER NOT NULL,
  due     INTEGER NOT NULL,
  tries   INTEGER NOT NULL DEFAULT 0,
  dead    INTEGER NOT NULL DEFAULT 0 CHECK (dead IN (0, 1)),
  fault   TEXT    NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX notices_waiting ON notices (channel, ticket, seq) WHERE dead = 0;
CREATE INDEX notices_ended ON notices (until);
