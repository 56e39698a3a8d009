package main

import "slices"

// quantile returns the value below which a share q of the values lies, the nearest
// one; 0 of none. It sorts the values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(q*float64(len(values))))]
}

// A spread is the median of the rounds, and the lowest and the highest round.
type spread struct {
	Median, Low, High float64
	Rounds            int
}

// spreadOf returns the spread of the rounds' values.
func spreadOf(values []float64) spread {
	n := len(values)
	if n == 0 {
		return spread{}
	}
	v := slices.Sorted(slices.Values(values))
	return spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Low: v[0], High: v[n-1], Rounds: n}
}
