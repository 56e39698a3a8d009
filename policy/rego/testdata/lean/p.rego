package toolgate
import rego.v2
granted if { some r in input.principal.roles; data.roles[r].tools[input.tool.name] }
too_big if { input.tool.name == "pay"; is_number(input.arguments.amount); input.arguments.amount > data.thresholds.pay }
decision := {"effect": "deny", "rule": "ROLE", "reason": "role"} if not granted
decision := {"effect": "hold", "rule": "AMOUNT", "reason": "amount", "approval": {"roles": ["boss"]}} if { granted; too_big }
decision := {"effect": "allow", "rule": "OK", "reason": "role"} if { granted; not too_big }
