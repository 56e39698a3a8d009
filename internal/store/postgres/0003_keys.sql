-- expand: older versions ignore the new table

-- IDs of the secrets that the replicas share, never the secrets: see keys.Agree.
CREATE TABLE keys (
  name TEXT NOT NULL,
  id   TEXT NOT NULL,
  PRIMARY KEY (name, id)
);
