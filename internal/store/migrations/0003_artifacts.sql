-- expand: older versions keep no artifacts and ignore the tables

-- What lies in the artifact directory, by content, and who was given it. Ids
-- are "sha256:<hex>", sizes bytes, times nanoseconds since 1970. granted of an
-- artifact is the latest one of its grants. The type belongs to the grant, so
-- that nobody learns what others called the same bytes.
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
