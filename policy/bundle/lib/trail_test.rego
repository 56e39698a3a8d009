package toolgate.lib.trail_test

import rego.v2

import data.toolgate

rights := {"auditor": "all", "approver": "decides"}

reads(roles) := right if right := toolgate.trail with input as {"principal": {"subject": "a", "roles": roles}} with data.trail as rights

test_the_widest_right_counts if reads(["approver", "auditor"]) == "all"

test_an_approver_reads_what_it_decides if reads(["approver"]) == "decides"

test_others_read_nothing if not reads(["observer"])
