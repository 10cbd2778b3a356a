//go:build barnabas_level2

package state

import "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"

// MaxLevel is the newest feature level that this build can serve. Level 2 exists for tests of rolling upgrades.
const MaxLevel = 2

func (s *State) levelTwo(c *statepb.Command) *statepb.Result {
	if a := c.GetAnnotate(); a != nil {
		s.meta.Note = a.Note
		return &statepb.Result{}
	}
	return nil
}
