-- expand: older versions have no servers with credentials of people, so that none of their tickets has a value

-- What the call of a ticket runs as, a JSON object (policy/approval.Account) without secrets; '' =
-- as the configuration says. unconnected is why an approved call may not run with what its
-- requester has; the ticket is then in state needs_connection. A ticket's MAC is over both, so
-- that an older version never runs a call that has them.
ALTER TABLE approvals ADD COLUMN runs_as     TEXT NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN unconnected TEXT NOT NULL DEFAULT '';
