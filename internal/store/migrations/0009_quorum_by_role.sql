-- contract: older versions would not count votes by role

-- The approvals that a ticket needs from holders of each role, a JSON object of
-- numbers by role ("" = its quorum alone counts), and the roles with which
-- somebody voted, a JSON array.
ALTER TABLE approvals      ADD COLUMN each_role TEXT NOT NULL DEFAULT '';
ALTER TABLE approval_votes ADD COLUMN roles     TEXT NOT NULL DEFAULT '[]';
