-- expand: older versions withhold definitions for some clients only, and ignore the table

-- The pins of definitions that a server offers only to some clients: condition says to
-- which (registry/upstream.Condition). The pins of those for all clients stay in pins, whose
-- columns these are.
CREATE TABLE pin_variants (
  server              TEXT   NOT NULL,
  tool                TEXT   NOT NULL,
  condition           TEXT   NOT NULL,
  accepted            TEXT   NOT NULL,
  accepted_definition BYTEA  NOT NULL,
  accepted_at         BIGINT NOT NULL,
  offered             TEXT   NOT NULL DEFAULT '',
  offered_definition  BYTEA,
  offered_at          BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (server, tool, condition)
);
