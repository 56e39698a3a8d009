-- contract: older versions would write tickets and votes without a MAC

-- Tickets and votes carry a MAC over what they say, the store's name and their own
-- identity. version is the number of the ticket's last change, mac the key's ID, ":" and
-- the MAC in hexadecimal; "" in rows that an older version of toolgate wrote.
ALTER TABLE approvals      ADD COLUMN version       INTEGER NOT NULL DEFAULT 0;
ALTER TABLE approvals      ADD COLUMN result_digest TEXT    NOT NULL DEFAULT '';
ALTER TABLE approvals      ADD COLUMN mac           TEXT    NOT NULL DEFAULT '';
ALTER TABLE approval_votes ADD COLUMN mac           TEXT    NOT NULL DEFAULT '';

-- The random name of the store, the number of the last change of any ticket, and
-- whether the store was restored from a backup and not yet opened.
ALTER TABLE approval_clock ADD COLUMN store    TEXT    NOT NULL DEFAULT '';
ALTER TABLE approval_clock ADD COLUMN changes  INTEGER NOT NULL DEFAULT 0;
ALTER TABLE approval_clock ADD COLUMN restored INTEGER NOT NULL DEFAULT 0;
UPDATE approval_clock SET store = lower(hex(randomblob(16))), changes = (SELECT coalesce(max(seq), 0) FROM approval_history);

-- Each list of tickets that a held call reads has an index that holds those alone, so
-- that old tickets cost it nothing.
CREATE INDEX approvals_waiting ON approvals (subject, tenant, digest) WHERE state IN ('proposed', 'approved');
CREATE INDEX approvals_running ON approvals (subject, tenant) WHERE state = 'dispatching';
CREATE INDEX approvals_ended ON approvals (deadline) WHERE state IN ('denied', 'expired', 'superseded', 'done', 'failed');
CREATE INDEX notices_ticket ON notices (ticket);
