//go:build !barnabas_level2

package state

import "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"

// MaxLevel is the newest feature level that this build can serve.
const MaxLevel = 1

func (s *State) levelTwo(*statepb.Command) *statepb.Result { return nil }
