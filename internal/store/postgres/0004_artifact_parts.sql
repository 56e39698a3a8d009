-- expand: older versions ignore the new table

-- The bytes of artifacts, in parts of at most 1 MiB, for the replicas that did not make them.
-- SQLite has none of it: its processes share a directory. Parts are there before their row
-- in artifacts is, and are deleted after it.
CREATE TABLE artifact_parts (
  artifact TEXT   NOT NULL,
  part     BIGINT NOT NULL CHECK (part >= 0),
  bytes    BYTEA  NOT NULL CHECK (length(bytes) <= 1048576),
  PRIMARY KEY (artifact, part)
);

-- Compressing what is mostly compressed already costs time and saves nothing.
ALTER TABLE artifact_parts ALTER COLUMN bytes SET STORAGE EXTERNAL;
