//go:build !barnabas_level2

package node

import "net/http"

// routes are admin routes of a special build; this one has none.
func (n *node) routes() map[string]http.HandlerFunc { return nil }
