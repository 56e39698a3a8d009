-- contract: older versions change tickets and meters under one lock, which this one does not take, and number changes themselves

-- The numbers of changes of tickets. They may become visible in another order.
-- changes of approval_clock is one that was committed, at least that of any deleted row.
CREATE SEQUENCE approval_changes;
SELECT setval('approval_changes', changes + 1, false) FROM approval_clock;
