-- expand: the first tables

-- Times are nanoseconds since 1970. created and expires are the wall clock, for
-- people; deadline is in the store's own time, which never goes back.
CREATE TABLE approvals (
  seq             INTEGER PRIMARY KEY,
  id              TEXT    NOT NULL UNIQUE,
  binding         TEXT    NOT NULL,
  state           TEXT    NOT NULL CHECK (state IN ('proposed', 'approved', 'denied', 'expired', 'superseded',
                                                    'dispatching', 'done', 'failed', 'unknown')),
  subject         TEXT    NOT NULL CHECK (subject <> ''),
  tenant          TEXT    NOT NULL,
  principal       TEXT    NOT NULL,
  server          TEXT    NOT NULL,
  tool            TEXT    NOT NULL,
  exposed         TEXT    NOT NULL,
  fingerprint     TEXT    NOT NULL,
  digest          TEXT    NOT NULL,
  arguments       BLOB    NOT NULL,
  revision        TEXT    NOT NULL,
  rule            TEXT    NOT NULL,
  reason          TEXT    NOT NULL,
  roles           TEXT    NOT NULL CHECK (json_array_length(roles) > 0),
  quorum          INTEGER NOT NULL CHECK (quorum > 0),
  created         INTEGER NOT NULL,
  expires         INTEGER NOT NULL,
  deadline        INTEGER NOT NULL,
  decision_id     TEXT    NOT NULL,
  trace_id        TEXT    NOT NULL,
  decided_by      TEXT    NOT NULL DEFAULT '',
  decision_reason TEXT    NOT NULL DEFAULT '',
  instance        TEXT    NOT NULL DEFAULT '' CHECK (state <> 'dispatching' OR instance <> ''),
  result          BLOB,
  note            TEXT    NOT NULL DEFAULT '',
  attached        INTEGER NOT NULL DEFAULT 0,
  reported        INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE UNIQUE INDEX approvals_live ON approvals (binding) WHERE state IN ('proposed', 'approved', 'dispatching');
CREATE INDEX approvals_binding ON approvals (binding, seq);
CREATE INDEX approvals_requester ON approvals (subject, tenant, state);
CREATE INDEX approvals_state ON approvals (state, seq);
CREATE INDEX approvals_kept ON approvals (deadline) WHERE result IS NOT NULL;
CREATE INDEX approvals_due ON approvals (deadline) WHERE state IN ('proposed', 'approved');

CREATE TABLE approval_votes (
  ticket  TEXT    NOT NULL REFERENCES approvals (id),
  subject TEXT    NOT NULL,
  approve INTEGER NOT NULL CHECK (approve IN (0, 1)),
  reason  TEXT    NOT NULL,
  digest  TEXT    NOT NULL,
  at      INTEGER NOT NULL,
  PRIMARY KEY (ticket, subject)
) STRICT, WITHOUT ROWID;

CREATE TABLE approval_history (
  seq    INTEGER PRIMARY KEY,
  ticket TEXT    NOT NULL REFERENCES approvals (id),
  at     INTEGER NOT NULL,
  who    TEXT    NOT NULL,
  "from" TEXT    NOT NULL,
  "to"   TEXT    NOT NULL,
  reason TEXT    NOT NULL,
  digest TEXT    NOT NULL
) STRICT;

CREATE INDEX approval_history_ticket ON approval_history (ticket, seq);

CREATE TABLE approval_clock (
  one  INTEGER PRIMARY KEY CHECK (one = 1),
  seen INTEGER NOT NULL
) STRICT;

INSERT INTO approval_clock VALUES (1, 0);
