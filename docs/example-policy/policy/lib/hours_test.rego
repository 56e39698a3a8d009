package toolgate.lib.hours_test

import rego.v2

import data.toolgate.lib.hours

office := {"zone": "Europe/Berlin", "open": [
	{"days": ["Monday", "Tuesday"], "from": "08:00", "to": "17:30"},
	{"days": ["Saturday"], "from": "00:00", "to": "24:00"},
]}

at(time) if hours.open(office) with input as {"request": {"time": time}}

test_open if {
	at("2026-11-23T07:00:00Z") # Monday, 08:00 in winter
	at("2026-11-23T16:29:59.999999999Z")
	at("2026-07-20T06:00:00Z") # Monday, 08:00 in summer
	at("2026-11-20T23:00:00Z") # Saturday has begun there
	at("2026-11-21T22:59:59Z")
}

test_closed if {
	every time in [
		"2026-11-23T06:59:59Z", "2026-11-23T16:30:00Z", "2026-07-20T05:59:59Z", "2026-11-25T10:00:00Z", "2026-11-20T22:59:59Z",
		"2026-11-21T23:00:00Z", "0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "", "noon", "2026-11-23T10:00:00+02:00", null, 1795417200, [],
	] {
		not at(time)
	}
	not hours.open(office) with input as {"request": {}}
	not hours.open({"zone": "UTC"}) with input as {"request": {"time": "2026-11-23T10:00:00Z"}}
	not hours.open({"open": [{"days": ["Monday"], "from": "00:00", "to": "24:00"}]}) with input as {"request": {"time": "2026-11-23T10:00:00Z"}}
	not hours.open(office.open) with input as {"request": {"time": "2026-11-23T10:00:00Z"}}
}

test_open_by_name if {
	hours.open("desk") with data.schedules as {"desk": office} with input as {"request": {"time": "2026-11-23T07:00:00Z"}}
	not hours.open("desk") with data.schedules as {"desk": office} with input as {"request": {"time": "2026-11-23T06:59:59Z"}}
	not hours.open("desk") with data.schedules as {"other": office} with input as {"request": {"time": "2026-11-23T07:00:00Z"}}
}
