package index

// EachMember goes over the members of an object as the log writes it.
var EachMember = eachMember
