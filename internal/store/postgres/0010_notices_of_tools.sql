-- expand: older versions would send a notice about a tool in the words of a decided ticket

-- A notice may be about a tool: ticket is empty then.
ALTER TABLE notices DROP CONSTRAINT notices_ticket_fkey;
