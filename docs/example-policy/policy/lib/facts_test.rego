package toolgate.lib.facts_test

import rego.v2

import data.toolgate.lib.facts

declared := {
	"pay": {"contract": "manage_wallet", "amount": {"decimals": {"USD": 2, "BTC": 8, "ETH": 18, "JPY": 0}}},
	"draw": {"contract": "generate_media"},
}

units(tool, asset, amount) := counted if counted := facts.units(tool, "amount", asset, amount) with data.facts as declared

test_units_are_whole_and_exact if {
	units("pay", "USD", 100) == 10000
	units("pay", "USD", 0.07) == 7
	units("pay", "BTC", 0.001) == 100000
	units("pay", "ETH", 0.05) == 50000000000000000
	units("pay", "ETH", 1234567) == 1234567000000000000000000
	units("pay", "JPY", 5) == 5
}

test_no_units_without_decimals_of_the_asset if {
	every asset in ["DOGE", "usd", "", null, ["USD"]] {
		not units("pay", asset, 1)
	}
	every amount in ["100", null, [1]] {
		not units("pay", "USD", amount)
	}
}

test_other_numbers_stay if {
	every tool in ["draw", "other"] {
		units(tool, "USD", 100.5) == 100.5
	}
}

written(tool, asset, amount) := text if text := facts.written(tool, "amount", asset, amount) with data.facts as declared

test_amounts_are_written_in_whole_units if {
	written("pay", "USD", 45000) == "450"
	written("pay", "USD", 7) == "0.07"
	written("pay", "USD", 100050) == "1000.5"
	written("pay", "JPY", 500) == "500"
	written("pay", "ETH", 50000000000000001) == "0.050000000000000001"
	written("pay", "ETH", 123456789012345678901234567890) == "123456789012.34567890123456789"
}

test_other_amounts_are_written_as_they_are if {
	every pair in [[100, "100"], [100.0, "100"], [100.50, "100.5"], [0.001, "0.001"], [-1.20, "-1.2"], [1000, "1000"]] {
		written("pay", "DOGE", pair[0]) == pair[1]
		written("other", "USD", pair[0]) == pair[1]
	}
	not written("pay", "USD", "7")
	not written("pay", "DOGE", null)
}

test_remedies if {
	plain := facts.amounts("other", {"amount": 100}) with data.facts as declared
	plain == "send the amount as a JSON number, not as text"
	exact := facts.amounts("pay", {"amount": 100}) with data.facts as declared
	contains(exact, `"BTC":8`)
}
