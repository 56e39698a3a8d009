# METADATA
# title: Hours
# description: |
#   Working hours, by the time that the request carries (no policy reads a clock)
#   in a time zone:
#
#     data.schedules[name]
#       {"zone": "Europe/Berlin",
#        "open": [{"days": ["Monday", "Friday"], "from": "08:00", "to": "17:30"}]}
#
#   Times are written with two digits each; "to" is the first moment that is
#   closed, "24:00" the end of the day. Hours over midnight are two entries.
package toolgate.lib.hours

import rego.v2

# METADATA
# title: The schedule is open at the time of the request
# description: A schedule that is not there, and a request without a time, are closed.
open(schedule) if {
	is_string(input.request.time)
	regex.match(`^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z$`, input.request.time)
	now := [time.parse_rfc3339_ns(input.request.time), schedule.zone]
	[hour, minute, _] := time.clock(now)
	clock := sprintf("%02d:%02d", [hour, minute])
	some span in schedule.open
	time.weekday(now) in span.days
	span.from <= clock
	clock < span.to
}
