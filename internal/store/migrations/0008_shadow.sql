-- expand: older versions compare no policies and ignore the tables

-- What a policy that does not serve yet would have decided otherwise. difference
-- says in what: the effect, the rule, or the obligations. Only the newest are kept.
-- Times are nanoseconds since 1970, by the wall clock.
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

-- How often each candidate was asked, and how it came out.
CREATE TABLE shadow_totals (
  candidate TEXT PRIMARY KEY,
  first     INTEGER NOT NULL,
  last      INTEGER NOT NULL,
  same      INTEGER NOT NULL,
  changed   INTEGER NOT NULL,
  failed    INTEGER NOT NULL,
  skipped   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
