-- expand: older versions would send a notice about a tool in the words of a decided ticket

-- A notice may be about a tool: ticket is empty then.
CREATE TABLE notices_next (
  seq     INTEGER PRIMARY KEY,
  id      TEXT    NOT NULL UNIQUE,
  channel TEXT    NOT NULL,
  ticket  TEXT    NOT NULL,
  body    BLOB    NOT NULL,
  until   INTEGER NOT NULL,
  due     INTEGER NOT NULL,
  tries   INTEGER NOT NULL DEFAULT 0,
  dead    INTEGER NOT NULL DEFAULT 0 CHECK (dead IN (0, 1)),
  fault   TEXT    NOT NULL DEFAULT ''
) STRICT;

INSERT INTO notices_next SELECT seq, id, channel, ticket, body, until, due, tries, dead, fault FROM notices;
DROP TABLE notices;
ALTER TABLE notices_next RENAME TO notices;

CREATE INDEX notices_waiting ON notices (channel, ticket, seq) WHERE dead = 0;
CREATE INDEX notices_ended ON notices (until);
CREATE INDEX notices_ticket ON notices (ticket);
