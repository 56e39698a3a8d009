-- expand: older versions ship no decisions and ignore the tables

-- How far the decision log has got. Its outbox is the audit trail: of each chain
-- of it, every record up to seq is dealt with. owner is the process that ships to
-- a sink now, known by the lock of that name, '' when none does.
CREATE TABLE decision_log_sinks (
  sink  TEXT PRIMARY KEY CHECK (sink IN ('file', 'http')),
  owner TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

CREATE TABLE decision_log_places (
  sink  TEXT    NOT NULL REFERENCES decision_log_sinks (sink),
  chain TEXT    NOT NULL,
  seq   INTEGER NOT NULL CHECK (seq >= 0),
  PRIMARY KEY (sink, chain)
) STRICT, WITHOUT ROWID;

-- Events that a sink refused while it took others: they are shipped no more. at
-- is nanoseconds since 1970, by the wall clock.
CREATE TABLE decision_log_parked (
  sink        TEXT    NOT NULL REFERENCES decision_log_sinks (sink),
  decision_id TEXT    NOT NULL,
  chain       TEXT    NOT NULL,
  seq         INTEGER NOT NULL,
  fault       TEXT    NOT NULL,
  at          INTEGER NOT NULL,
  PRIMARY KEY (sink, chain, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX decision_log_parked_at ON decision_log_parked (at);
