-- 23 migrations, 8a912418e337ea8e9a180953e2028f88d4fdecd6681b150f2f2a253daafcbca7

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
, transport TEXT    NOT NULL DEFAULT '', era       TEXT    NOT NULL DEFAULT '', session   TEXT    NOT NULL DEFAULT '', made_by   TEXT    NOT NULL DEFAULT '', until     INTEGER NOT NULL DEFAULT 0, execute   INTEGER NOT NULL DEFAULT 0 CHECK (execute IN (0, 1)), each_role TEXT NOT NULL DEFAULT '', parties TEXT NOT NULL DEFAULT '[]', version       INTEGER NOT NULL DEFAULT 0, result_digest TEXT    NOT NULL DEFAULT '', mac           TEXT    NOT NULL DEFAULT '', tags TEXT NOT NULL DEFAULT '', runs_as     TEXT NOT NULL DEFAULT '', unconnected TEXT NOT NULL DEFAULT '') STRICT;

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
  at      INTEGER NOT NULL, counted_by TEXT    NOT NULL DEFAULT '', until      INTEGER NOT NULL DEFAULT 0, roles     TEXT NOT NULL DEFAULT '[]', parties TEXT NOT NULL DEFAULT '[]', person  TEXT NOT NULL DEFAULT '', mac           TEXT    NOT NULL DEFAULT '',
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
, store    TEXT    NOT NULL DEFAULT '', changes  INTEGER NOT NULL DEFAULT 0, restored INTEGER NOT NULL DEFAULT 0) STRICT;

CREATE TABLE pins (
	server              TEXT NOT NULL,
	tool                TEXT NOT NULL,
	accepted            TEXT NOT NULL,
	accepted_definition BLOB NOT NULL,
	accepted_at         INTEGER NOT NULL,
	offered             TEXT NOT NULL DEFAULT '',
	offered_definition  BLOB,
	offered_at          INTEGER NOT NULL DEFAULT 0, verdicts TEXT NOT NULL DEFAULT '',
	PRIMARY KEY (server, tool)
) STRICT;

CREATE TABLE artifacts (
  id      TEXT    PRIMARY KEY CHECK (length(id) = 71 AND id GLOB 'sha256:*'),
  size    INTEGER NOT NULL CHECK (size >= 0),
  granted INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX artifacts_granted ON artifacts (granted DESC, id, size);

CREATE TABLE artifact_grants (
  artifact TEXT    NOT NULL REFERENCES artifacts (id) ON DELETE CASCADE,
  subject  TEXT    NOT NULL CHECK (subject <> ''),
  tenant   TEXT    NOT NULL,
  type     TEXT    NOT NULL,
  created  INTEGER NOT NULL,
  granted  INTEGER NOT NULL,
  PRIMARY KEY (artifact, subject, tenant)
) STRICT, WITHOUT ROWID;

CREATE INDEX artifact_grants_due ON artifact_grants (granted);

CREATE INDEX approvals_execute ON approvals (seq) WHERE execute = 1 AND state = 'approved';

CREATE INDEX approvals_similar ON approvals (server, tool, exposed, seq);

CREATE INDEX approvals_answering ON approvals (subject, tenant, deadline);

CREATE TABLE usage (
  id      INTEGER PRIMARY KEY,
  subject TEXT    NOT NULL CHECK (subject <> ''),
  tenant  TEXT    NOT NULL,
  tool    TEXT    NOT NULL,
  meter   TEXT    NOT NULL,
  per     TEXT    NOT NULL,
  ends    INTEGER NOT NULL,
  ticket  TEXT    NOT NULL DEFAULT '',
  digest  TEXT    NOT NULL DEFAULT '',
  answers INTEGER NOT NULL DEFAULT 0,
  calls   INTEGER NOT NULL CHECK (calls > 0),
  sum     TEXT    NOT NULL,
  until   INTEGER NOT NULL,
  UNIQUE (subject, tenant, tool, meter, per, ends, ticket)
) STRICT;

CREATE INDEX usage_ticket ON usage (ticket) WHERE ticket <> '';

CREATE INDEX usage_over ON usage (until);

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

CREATE TABLE shadow_disagreements (
  candidate   TEXT    NOT NULL,
  decision_id TEXT    NOT NULL,
  at          INTEGER NOT NULL,
  serving     TEXT    NOT NULL,
  principal   TEXT    NOT NULL,
  tool        TEXT    NOT NULL,
  difference  TEXT    NOT NULL CHECK (difference IN ('effect', 'rule', 'obligations')),
  was_effect  TEXT    NOT NULL,
  was_rule    TEXT    NOT NULL,
  now_effect  TEXT    NOT NULL,
  now_rule    TEXT    NOT NULL,
  reason      TEXT    NOT NULL,
  PRIMARY KEY (candidate, decision_id)
) STRICT;

CREATE INDEX shadow_disagreements_at ON shadow_disagreements (at);

CREATE TABLE shadow_totals (
  candidate TEXT PRIMARY KEY,
  first     INTEGER NOT NULL,
  last      INTEGER NOT NULL,
  same      INTEGER NOT NULL,
  changed   INTEGER NOT NULL,
  failed    INTEGER NOT NULL,
  skipped   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE revoked_tokens (
  sha256  TEXT    PRIMARY KEY CHECK (length(sha256) = 64),
  subject TEXT    NOT NULL,
  reason  TEXT    NOT NULL,
  at      INTEGER NOT NULL
, until INTEGER NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID;

CREATE INDEX approvals_waiting ON approvals (subject, tenant, digest) WHERE state IN ('proposed', 'approved');

CREATE INDEX approvals_running ON approvals (subject, tenant) WHERE state = 'dispatching';

CREATE INDEX approvals_ended ON approvals (deadline) WHERE state IN ('denied', 'expired', 'superseded', 'done', 'failed');

CREATE TABLE listings (
	server       TEXT PRIMARY KEY,
	origin       TEXT NOT NULL,
	tools        BLOB NOT NULL,
	capabilities BLOB,
	info         BLOB,
	instructions TEXT NOT NULL
, lists BLOB) STRICT;

CREATE TABLE "notices" (
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

CREATE INDEX notices_waiting ON notices (channel, ticket, seq) WHERE dead = 0;

CREATE INDEX notices_ended ON notices (until);

CREATE INDEX notices_ticket ON notices (ticket);

CREATE TABLE pin_variants (
	server              TEXT NOT NULL,
	tool                TEXT NOT NULL,
	condition           TEXT NOT NULL,
	accepted            TEXT NOT NULL,
	accepted_definition BLOB NOT NULL,
	accepted_at         INTEGER NOT NULL,
	offered             TEXT NOT NULL DEFAULT '',
	offered_definition  BLOB,
	offered_at          INTEGER NOT NULL DEFAULT 0, verdicts TEXT NOT NULL DEFAULT '',
	PRIMARY KEY (server, tool, condition)
) STRICT;

CREATE TABLE spent_proofs (
	id    BLOB    NOT NULL PRIMARY KEY,
	until INTEGER NOT NULL
) STRICT;

CREATE TABLE console_sessions (
	id               TEXT PRIMARY KEY,
	subject          TEXT NOT NULL,
	credential       TEXT NOT NULL,
	sid              TEXT NOT NULL,
	principal        TEXT NOT NULL,
	credential_until INTEGER NOT NULL,
	until            INTEGER NOT NULL,
	seen             INTEGER NOT NULL,
	mac              TEXT NOT NULL
) STRICT;

CREATE TABLE console_logouts (
	jti   TEXT PRIMARY KEY,
	until INTEGER NOT NULL
) STRICT;

CREATE TABLE credential_grants (
	id            TEXT PRIMARY KEY,
	server        TEXT NOT NULL,
	person_issuer TEXT NOT NULL,
	tenant        TEXT NOT NULL,
	subject       TEXT NOT NULL,
	issuer        TEXT NOT NULL,
	account       TEXT NOT NULL,
	scopes        TEXT NOT NULL,
	wanted        TEXT NOT NULL DEFAULT '',
	created       INTEGER NOT NULL,
	until         INTEGER NOT NULL,
	state         TEXT NOT NULL,
	reason        TEXT NOT NULL DEFAULT '',
	holder        TEXT NOT NULL DEFAULT '',
	lease         INTEGER NOT NULL DEFAULT 0,
	version       INTEGER NOT NULL,
	sealed        BLOB NOT NULL,
	UNIQUE (server, person_issuer, tenant, subject)
) STRICT;

CREATE TABLE credential_starts (
	state         TEXT PRIMARY KEY,
	server        TEXT NOT NULL,
	person_issuer TEXT NOT NULL,
	tenant        TEXT NOT NULL,
	subject       TEXT NOT NULL,
	until         INTEGER NOT NULL,
	sealed        BLOB NOT NULL
) STRICT;

CREATE TABLE credential_clients (
	issuer   TEXT NOT NULL,
	redirect TEXT NOT NULL,
	until    INTEGER NOT NULL,
	sealed   BLOB NOT NULL,
	PRIMARY KEY (issuer, redirect)
) STRICT;

CREATE TABLE stops (
	id      TEXT PRIMARY KEY,
	kind    TEXT NOT NULL,
	name    TEXT NOT NULL,
	reason  TEXT NOT NULL,
	subject TEXT NOT NULL,
	at      INTEGER NOT NULL,
	until   INTEGER NOT NULL
) STRICT;

CREATE TABLE stop_confirmations (
	stop    TEXT NOT NULL,
	replica TEXT NOT NULL,
	at      INTEGER NOT NULL,
	PRIMARY KEY (stop, replica)
) STRICT;

INSERT INTO approval_clock (one, seen, store) VALUES (1, 0, lower(hex(randomblob(16))));

INSERT INTO schema_version (version, name) VALUES
  (1, '0001_approvals.sql'),
  (2, '0002_pins.sql'),
  (3, '0003_artifacts.sql'),
  (4, '0004_approval_views.sql'),
  (5, '0005_notices.sql'),
  (6, '0006_usage.sql'),
  (7, '0007_decision_log.sql'),
  (8, '0008_shadow.sql'),
  (9, '0009_quorum_by_role.sql'),
  (10, '0010_parties.sql'),
  (11, '0011_authentic_tickets.sql'),
  (12, '0012_listings.sql'),
  (13, '0013_lists.sql'),
  (14, '0014_ended_tokens.sql'),
  (15, '0015_tags.sql'),
  (16, '0016_notices_of_tools.sql'),
  (17, '0017_pin_variants.sql'),
  (18, '0018_spent_proofs.sql'),
  (19, '0019_console_sessions.sql'),
  (20, '0020_credentials.sql'),
  (21, '0021_runs_as.sql'),
  (22, '0022_stops.sql'),
  (23, '0023_verdicts.sql');
