package ztree

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Op is a kind of write.
type Op uint8

// The writes of ZooKeeper's clients.
const (
	OpCreate Op = iota + 1
	OpDelete
	OpSetData
	OpSetACL
)

// Write is a client's write; its path has been checked for form.
type Write struct {
	Op                    Op
	Path                  string
	Data                  []byte // nil is null
	ACL                   []ACL
	Version               int32 // -1: any
	Ephemeral, Sequential bool
}

// Plan is what a write becomes: a command, or an answer without one.
type Plan struct {
	Command *statepb.Command // nil: Code and Text are the answer; OK means that there is nothing to change
	Code    statepb.Code
	Text    string // why it was refused, for people
	// Coordinator: the command goes to the group coordinator, which may hold it.
	Coordinator bool
	// Moved: the plan stands on a row that may change; after STALE it is made again from a newer view.
	Moved bool
	// Known: refusals that are no failure for this write (deleting what is gone already).
	Known statepb.Code
	// Path is what a create answers with when the command's result has none.
	Path string
}

func refuse(code statepb.Code, format string, args ...any) Plan {
	return Plan{Code: code, Text: fmt.Sprintf(format, args...)}
}

func command(body *statepb.Command) Plan { return Plan{Command: body} }

// Plan turns a write into a command. topicID is 16 random bytes, for a topic that the write may create. The origin,
// lane and level of the command are the caller's to set.
func (v View) Plan(w Write, topicID []byte) Plan {
	if w.Path == reassignPath || w.Path == preferredPath || strings.HasPrefix(w.Path, deleteDir) {
		if p, ok := v.planAdmin(w); ok {
			return p
		}
	}
	switch p := state.ParsePath(w.Path); p.Kind {
	case state.PathTopic:
		return v.planTopic(w, p, topicID)
	case state.PathConfig:
		return v.planConfig(w, p)
	case state.PathBroker, state.PathController:
		return v.planProjected(w)
	case state.Free:
		if entity, below := belowConfig(w.Path); below && w.Op == OpCreate {
			if _, ok := v.Node(entity, Observer{}); ok {
				return refuse(statepb.Code_NO_AUTH, "%s: %s has no nodes below it (quotas of a user's clients are not served)", w.Path, entity)
			}
		}
	case state.PathOffset:
		if w.Op == OpSetACL {
			return v.planProjected(w)
		}
	case state.PathMember:
		plan := planFree(w)
		// With data it is a join. kafka-node creates without and sets the data only after the reply (groups.md).
		plan.Coordinator = !w.Sequential && (w.Op == OpCreate && w.Ephemeral && w.Data != nil || w.Op == OpSetData)
		return plan
	case state.PathOwner:
		if w.Op == OpCreate && !w.Sequential {
			return planClaim(w, p)
		}
	}
	return planFree(w)
}

// planFree is a write of a stored node.
func planFree(w Write) Plan {
	null := w.Data == nil
	switch w.Op {
	case OpCreate:
		return command(&statepb.Command{Body: &statepb.Command_CreateZnode{CreateZnode: &statepb.CreateZnode{
			Path: w.Path, Data: w.Data, Null: null, Acl: toACL(w.ACL), Ephemeral: w.Ephemeral, Sequential: w.Sequential}}})
	case OpDelete:
		return command(&statepb.Command{Body: &statepb.Command_DeleteZnode{DeleteZnode: &statepb.DeleteZnode{
			Path: w.Path, Version: w.Version}}})
	case OpSetData:
		return command(&statepb.Command{Body: &statepb.Command_SetZnode{SetZnode: &statepb.SetZnode{
			Path: w.Path, Data: w.Data, Null: null, Version: w.Version}}})
	default:
		return command(&statepb.Command{Body: &statepb.Command_SetAcl{SetAcl: &statepb.SetAcl{
			Path: w.Path, Acl: toACL(w.ACL), Version: w.Version}}})
	}
}

func toACL(in []ACL) []*statepb.Acl {
	out := make([]*statepb.Acl, len(in))
	for i, a := range in {
		out[i] = &statepb.Acl{Perms: a.Perms, Scheme: a.Scheme, Id: a.ID}
	}
	return out
}

// planClaim is a create of an owner: whose partition it becomes is the coordinator's to decide.
func planClaim(w Write, p state.Path) Plan {
	number := p.Name
	if i := strings.LastIndexByte(number, '-'); i >= 0 { // pykafka: <leader>-<partition>
		number = number[i+1:]
	}
	partition, _ := state.ParsePartition(number)
	plan := command(&statepb.Command{Body: &statepb.Command_ClaimOwner{ClaimOwner: &statepb.ClaimOwner{
		Group: p.Group, Topic: p.Topic, Name: p.Name, Partition: partition, Data: w.Data, Null: w.Data == nil, Acl: toACL(w.ACL),
		Ephemeral: w.Ephemeral}}})
	plan.Coordinator = true
	return plan
}

// planProjected refuses to write what barnabas itself keeps, with ZooKeeper's own refusal where there is one.
func (v View) planProjected(w Write) Plan {
	n, ok := v.Node(w.Path, Observer{})
	switch {
	case w.Op == OpCreate && ok:
		return refuse(statepb.Code_NODE_EXISTS, "%s exists", w.Path)
	case w.Op != OpCreate && !ok:
		return refuse(statepb.Code_NO_NODE, "%s does not exist", w.Path)
	case (w.Op == OpDelete || w.Op == OpSetData) && w.Version != -1 && w.Version != n.Stat.Version:
		return refuse(statepb.Code_BAD_VERSION, "%s is at version %d", w.Path, n.Stat.Version)
	}
	return refuse(statepb.Code_NO_AUTH, "%s is kept by barnabas and cannot be written", w.Path)
}

// ---- /brokers/topics/<t> ----

// topicDoc is the datum of /brokers/topics/<t>.
type topicDoc struct {
	Partitions map[string][]int32 `json:"partitions"`
}

var errDense = errors.New("partitions must be numbered from 0 without gaps")

// assignments reads a partition map in the order of its partitions.
func assignments(data []byte) ([]*statepb.Assignment, error) {
	var doc topicDoc
	if err := decode(data, &doc); err != nil {
		return nil, err
	}
	out := make([]*statepb.Assignment, len(doc.Partitions))
	for k, replicas := range doc.Partitions {
		p, ok := state.ParsePartition(k)
		if !ok || int(p) >= len(out) {
			return nil, errDense
		}
		out[p] = &statepb.Assignment{Replicas: replicas}
	}
	if len(out) == 0 {
		return nil, errors.New("no partitions")
	}
	return out, nil
}

// decode reads one JSON document and nothing after it.
func decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return errors.New("something follows the document")
	}
	return nil
}

func (v View) planTopic(w Write, p state.Path, topicID []byte) Plan {
	if len(p.Rest) > 0 || w.Op != OpCreate && w.Op != OpSetData || w.Ephemeral || w.Sequential {
		return v.planProjected(w)
	}
	t, exists := v.s.Topic(p.Topic)
	switch {
	case state.InternalTopic(p.Topic):
		return refuse(statepb.Code_NO_AUTH, "topic %s is kept by barnabas", p.Topic)
	case w.Op == OpCreate && exists:
		return refuse(statepb.Code_NODE_EXISTS, "topic %s exists", p.Topic)
	case w.Op == OpSetData && !exists:
		return refuse(statepb.Code_NO_NODE, "topic %s does not exist", p.Topic)
	case w.Op == OpSetData && w.Version != -1 && w.Version != t.Stat.Version:
		return refuse(statepb.Code_BAD_VERSION, "%s is at version %d", w.Path, t.Stat.Version)
	}
	as, err := assignments(w.Data)
	if err != nil {
		return refuse(statepb.Code_INVALID, "%s: %v", w.Path, err)
	}
	if w.Op == OpCreate {
		plan := command(&statepb.Command{Body: &statepb.Command_CreateTopic{CreateTopic: &statepb.CreateTopic{
			Name: p.Topic, TopicId: topicID, Assignments: as, KeepConfig: true}}})
		plan.Path = w.Path
		return plan
	}
	return v.planGrowth(w, t, as)
}

// planGrowth is a new partition map: more partitions, the same ones, or a reassignment, which is refused here.
func (v View) planGrowth(w Write, t *state.Topic, as []*statepb.Assignment) Plan {
	same := len(as) >= int(t.Partitions)
	v.s.Partitions(t.Name, func(n int32, p *state.Partition) bool {
		same = same && sameReplicas(p.Replicas, as[n].Replicas)
		return same
	})
	switch {
	case !same:
		return refuse(statepb.Code_NO_AUTH, "%s: replicas are not moved by writing here, and partitions are never taken away", w.Path)
	case len(as) == int(t.Partitions):
		return Plan{} // the same again: nothing changes, nobody is woken
	}
	plan := command(&statepb.Command{Body: &statepb.Command_CreatePartitions{CreatePartitions: &statepb.CreatePartitions{
		Name: t.Name, From: t.Partitions, Assignments: as[t.Partitions:]}}})
	plan.Moved = true
	return plan
}

func sameReplicas(have []id.BrokerID, want []int32) bool {
	return slices.EqualFunc(have, want, func(a id.BrokerID, b int32) bool { return int32(a) == b })
}

// ---- /config/<type>/<name> ----

// belowConfig tells whether a path is below a configured entity, and which.
func belowConfig(path string) (entity string, below bool) {
	rest, ok := strings.CutPrefix(path, configDir)
	if !ok {
		return "", false
	}
	typ, rest, ok := strings.Cut(rest, "/")
	name, _, below := strings.Cut(rest, "/")
	return configDir + typ + "/" + name, ok && below && state.ConfigType(typ)
}

// configDoc is the datum of a configured entity.
type configDoc struct {
	Version json.Number       `json:"version"`
	Config  map[string]string `json:"config"`
}

func (v View) planConfig(w Write, p state.Path) Plan {
	if w.Op == OpSetACL || w.Ephemeral || w.Sequential {
		return v.planProjected(w)
	}
	set := &statepb.SetConfig{Type: p.Type, Name: p.Name, Replace: true, ZnodeVersion: w.Version}
	plan := command(&statepb.Command{Body: &statepb.Command_SetConfig{SetConfig: set}})
	plan.Path = w.Path
	if w.Op == OpDelete {
		set.RemoveRow = true
		return plan
	}
	set.CreateOnly, set.ExistsOnly = w.Op == OpCreate, w.Op == OpSetData
	if w.Op == OpCreate {
		set.ZnodeVersion = -1
	}
	_, exists := v.s.Config(p.Type, p.Name)
	switch {
	case w.Op == OpCreate && exists:
		return refuse(statepb.Code_NODE_EXISTS, "%s exists", w.Path)
	case w.Op == OpSetData && !exists:
		return refuse(statepb.Code_NO_NODE, "%s does not exist", w.Path)
	case w.Op == OpCreate && w.Data == nil:
		return plan // a directory on the way to something else: an entity without configuration
	}
	var doc configDoc
	if err := decode(w.Data, &doc); err != nil {
		return refuse(statepb.Code_INVALID, "%s: %v", w.Path, err)
	}
	if doc.Version != "1" {
		return refuse(statepb.Code_INVALID, "%s: version must be 1", w.Path)
	}
	for _, k := range slices.Sorted(maps.Keys(doc.Config)) {
		set.Entries = append(set.Entries, &statepb.ConfigEntry{Name: k, Value: doc.Config[k]})
	}
	return plan
}

// ---- /admin ----

const (
	deleteDir     = "/admin/delete_topics/"
	reassignPath  = "/admin/reassign_partitions"
	preferredPath = "/admin/preferred_replica_election"
)

type adminDoc struct {
	Partitions []struct {
		Topic     string  `json:"topic"`
		Partition int32   `json:"partition"`
		Replicas  []int32 `json:"replicas"`
	} `json:"partitions"`
}

// planAdmin is a tool's order. It is carried out by the time the create is answered, so the node is never seen. ok is
// false for what is no order.
func (v View) planAdmin(w Write) (p Plan, ok bool) {
	if w.Op != OpCreate || w.Ephemeral || w.Sequential {
		return Plan{}, false
	}
	if topic, is := strings.CutPrefix(w.Path, deleteDir); is {
		if strings.Contains(topic, "/") {
			return Plan{}, false
		}
		p = command(&statepb.Command{Body: &statepb.Command_DeleteTopic{DeleteTopic: &statepb.DeleteTopic{Name: topic}}})
		p.Path, p.Known = w.Path, statepb.Code_UNKNOWN_TOPIC // Kafka's controller ignores an unknown topic too
		return p, true
	}
	var doc adminDoc
	if err := decode(w.Data, &doc); err != nil {
		return refuse(statepb.Code_INVALID, "%s: %v", w.Path, err), true
	}
	if w.Path == preferredPath {
		return v.planPreferred(w, doc), true
	}
	for _, m := range doc.Partitions {
		row, ok := v.s.Partition(m.Topic, m.Partition)
		if ok && !sameReplicas(row.Replicas, m.Replicas) {
			return refuse(statepb.Code_NO_AUTH, "%s: replicas of %s-%d cannot be moved: reassignment is not served yet", w.Path,
				m.Topic, m.Partition), true
		}
	}
	return Plan{Path: w.Path}, true // every replica is where it should be
}

// planPreferred makes the first replica of each partition the leader where it is live and in sync.
func (v View) planPreferred(w Write, doc adminDoc) Plan {
	elect := &statepb.ElectLeaders{}
	for _, want := range doc.Partitions {
		t, ok := v.s.Topic(want.Topic)
		if !ok {
			continue
		}
		row, ok := v.s.Partition(want.Topic, want.Partition)
		if !ok || row.Leader == row.Replicas[0] || !slices.Contains(row.ISR, row.Replicas[0]) {
			continue
		}
		if b, ok := v.s.Broker(row.Replicas[0]); !ok || b.Liveness != state.Live {
			continue
		}
		elect.Elections = append(elect.Elections, &statepb.Election{TopicId: t.ID[:], Partition: want.Partition,
			PartitionEpoch: int32(row.Epoch), Leader: int32(row.Replicas[0])})
	}
	if len(elect.Elections) == 0 {
		return Plan{Path: w.Path}
	}
	plan := command(&statepb.Command{Body: &statepb.Command_ElectLeaders{ElectLeaders: elect}})
	plan.Path = w.Path
	return plan
}
