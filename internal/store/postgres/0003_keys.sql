-- expand: older versions ignore the new table

-- Secrets, by name and version: see keys.Share.
CREATE TABLE keys (
  name    TEXT   NOT NULL,
  version BIGINT NOT NULL CHECK (version > 0),
  secret  BYTEA  NOT NULL,
  PRIMARY KEY (name, version)
);
