-- expand: older versions ignore the new tables and columns

-- What replicas with a state directory each know of each other. SQLite has none of it: its
-- processes share a directory.

-- The last signed checkpoint of each chain of the audit trail, who wrote it and when.
CREATE TABLE checkpoints (
  chain TEXT   PRIMARY KEY,
  who   TEXT   NOT NULL,
  seq   BIGINT NOT NULL,
  hash  TEXT   NOT NULL,
  at    BIGINT NOT NULL,
  note  BYTEA  NOT NULL
);

-- What a replica serves; started is 0 for a process that serves nothing.
ALTER TABLE instances
  ADD COLUMN version       TEXT   NOT NULL DEFAULT '',
  ADD COLUMN policy        TEXT   NOT NULL DEFAULT '',
  ADD COLUMN configuration TEXT   NOT NULL DEFAULT '',
  ADD COLUMN started       BIGINT NOT NULL DEFAULT 0;
