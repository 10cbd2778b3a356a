package broker

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
)

func TestCompatibilityTable(t *testing.T) {
	// The versions that were decided on; they may only grow.
	wanted := map[string]int16{
		"Produce": 9, "Fetch": 12, "ListOffsets": 7, "Metadata": 12, "OffsetCommit": 9, "OffsetFetch": 9, "FindCoordinator": 4, "ApiVersions": 4,
		"CreateTopics": 7, "DeleteTopics": 6, "InitProducerId": 5, "CreatePartitions": 3, "DescribeConfigs": 4, "DescribeCluster": 1,
		"OffsetForLeaderEpoch": 4, "JoinGroup": 9, "Heartbeat": 4, "LeaveGroup": 5, "SyncGroup": 5, "DescribeGroups": 6, "ListGroups": 5,
		"DeleteGroups": 2, "OffsetDelete": 0, "ConsumerGroupHeartbeat": 1, "ConsumerGroupDescribe": 1,
	}
	doc, err := os.ReadFile("../docs/COMPATIBILITY.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^\| *(\d+) \| (\w+) \| 0-(\d+) \|`).FindAllSubmatch(doc, -1) {
		documented = append(documented, fmt.Sprintf("%s %s %s", m[1], m[2], m[3]))
	}
	var registered []string
	for _, a := range served() {
		name := a.name
		if name == "InitProducerID" {
			name = "InitProducerId"
		}
		registered = append(registered, fmt.Sprintf("%d %s %d", a.key, name, a.max))
		if a.max < wanted[name] {
			t.Errorf("%s is served up to version %d, decided was %d", name, a.max, wanted[name])
		}
		delete(wanted, name)
	}
	if len(wanted) > 0 {
		t.Errorf("not served: %v", wanted)
	}
	if !slices.Equal(documented, registered) {
		t.Errorf("docs/COMPATIBILITY.md lists\n%q\nserved is\n%q", documented, registered)
	}
}
