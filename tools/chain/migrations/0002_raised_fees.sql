-- contract: older versions look for the newest transaction of a payment only

-- A payment whose fee was raised has several transactions with its nonce: raw is the newest,
-- unsigned is the same as JSON, empty for payments that were signed before, and earlier has
-- the hashes of the others, each after a space.
ALTER TABLE payments ADD COLUMN unsigned BLOB NOT NULL DEFAULT x'';
ALTER TABLE payments ADD COLUMN earlier  TEXT NOT NULL DEFAULT '';
