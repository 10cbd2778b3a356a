//go:build race

package lease

func init() { underRace = true }
