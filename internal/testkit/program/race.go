//go:build race

package program

const raceEnabled = true
