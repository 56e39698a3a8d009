-- contract: older versions would not count what their calls use

-- What calls have used, for the meters of policies. A row is a slice of time: the
-- calls in it that needed no ticket, or the one run of a ticket. It counts for as
-- long as ends lies in a meter's window; after until nothing counts it. per is a
-- JSON array of the values that are counted apart, sum an exact decimal. digest is
-- that of the arguments of a ticket's call, and answers when the ticket stops
-- answering the identical call. Times are nanoseconds since 1970, by the wall clock.
CREATE TABLE usage (
  id      INTEGER PRIMARY KEY,
  subject TEXT    NOT NULL CHECK (subject <> ''),
  tenant  TEXT    NOT NULL,
  tool    TEXT    NOT NULL,
  meter   TEXT    NOT NULL,
  per     TEXT    NOT NULL,
  ends    INTEGER NOT NULL,
  ticket  TEXT    NOT NULL DEFAULT '',
  digest  TEXT    NOT NULL DEFAULT '',
  answers INTEGER NOT NULL DEFAULT 0,
  calls   INTEGER NOT NULL CHECK (calls > 0),
  sum     TEXT    NOT NULL,
  until   INTEGER NOT NULL,
  UNIQUE (subject, tenant, tool, meter, per, ends, ticket)
) STRICT;

CREATE INDEX usage_ticket ON usage (ticket) WHERE ticket <> '';
CREATE INDEX usage_over ON usage (until);
