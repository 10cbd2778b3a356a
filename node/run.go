package node

import (
	"context"
	"errors"
	"log/slog"

	"github.com/barnabas-mq/barnabas/node/config"
)

// ErrNotAssembled is returned while the rooms are not wired together.
var ErrNotAssembled = errors.New("this build has no broker in it")

// Run runs one broker until ctx ends and its shutdown is complete.
func Run(context.Context, config.Config, *slog.Logger) error { return ErrNotAssembled }
