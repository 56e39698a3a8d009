# METADATA
# title: Hours
# description: |
#   Opening hours in a time zone. The time is the one in the input: a policy reads
#   no clock.
#
#     data.schedules[name]
#       {"zone": "Europe/Berlin",
#        "open": [{"days": ["Monday", "Friday"], "from": "08:00", "to": "17:30"}]}
#
#   Times have two digits each. "to" is the first minute that is closed, "24:00" is
#   the end of the day. Hours across midnight take two entries.
# custom: {policy-data: [schedules]}
package toolgate.lib.hours

import rego.v2

# METADATA
# title: The schedule is open at the time of the request
# description: |
#   schedule is the name of one of data.schedules, or an object of the same form. A missing
#   schedule and a request without a time count as closed.
open(schedule) if covers(schedule)

open(name) if covers(data.schedules[name])

covers(schedule) if {
	at := input.request.time
	is_string(at)
	regex.match(`^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z$`, at)
	now := time.parse_rfc3339_ns(at)
	day := time.weekday([now, schedule.zone])
	clock := time.format([now, schedule.zone, "15:04"])
	some span in schedule.open
	day in span.days
	span.from <= clock
	clock < span.to
}
