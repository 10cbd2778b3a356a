//go:build barnabas_level2

package node

import (
	"encoding/json"
	"net/http"

	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// routes lets the test of rolling upgrades propose the one command that belongs to level 2.
func (n *node) routes() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{"POST /v1/annotate": func(w http.ResponseWriter, r *http.Request) {
		res, err := n.raft.Propose(r.Context(), &statepb.Command{Level: 2, Body: &statepb.Command_Annotate{
			Annotate: &statepb.Annotate{Note: r.URL.Query().Get("note")}}})
		answer := map[string]string{}
		switch {
		case err != nil:
			answer["error"] = err.Error()
		case res.Code != statepb.Code_OK:
			answer["error"] = res.Text
		}
		if len(answer) > 0 {
			w.WriteHeader(http.StatusConflict)
		}
		_ = json.NewEncoder(w).Encode(answer) // the client may be gone
	}}
}
