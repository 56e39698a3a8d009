// Package tickets has the pages and answers about held calls: people see what an agent asks for, exactly as it
// will run, and decide. The package comment of policy/approval has the moves of a ticket.
package tickets
