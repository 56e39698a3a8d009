-- contract: older versions would run a call after the end of its requester's credential

-- How a held call came in, for the people who decide on it, and what it takes to
-- run it without its agent: made_by is the instance whose tools and policy it was
-- judged with, until (nanoseconds since 1970, 0 = no end) when the requester's
-- credential ends.
ALTER TABLE approvals ADD COLUMN transport TEXT    NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN era       TEXT    NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN session   TEXT    NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN made_by   TEXT    NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN until     INTEGER NOT NULL DEFAULT 0;
ALTER TABLE approvals ADD COLUMN execute   INTEGER NOT NULL DEFAULT 0 CHECK (execute IN (0, 1));

CREATE INDEX approvals_execute ON approvals (seq) WHERE execute = 1 AND state = 'approved';
CREATE INDEX approvals_similar ON approvals (server, tool, exposed, seq);
CREATE INDEX approvals_answering ON approvals (subject, tenant, deadline);

-- Where a vote came from: the instance that counted it, and when the approver's
-- credential ended (as above), 0 for one that its operator configures.
ALTER TABLE approval_votes ADD COLUMN counted_by TEXT    NOT NULL DEFAULT '';
ALTER TABLE approval_votes ADD COLUMN until      INTEGER NOT NULL DEFAULT 0;
