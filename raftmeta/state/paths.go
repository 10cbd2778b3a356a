package state

import (
	"strconv"
	"strings"
)

// SplitPath cuts a valid absolute path into its parent and its last name; "/" has neither.
func SplitPath(path string) (parent, name string) {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "/", path[i+1:]
	}
	return path[:i], path[i+1:]
}

// ValidPath reports why ZooKeeper would refuse a path (org.apache.zookeeper.common.PathUtils), or "".
func ValidPath(path string) string {
	switch {
	case path == "":
		return "path is empty"
	case path[0] != '/':
		return "path must start with /"
	case path == "/":
		return ""
	case path[len(path)-1] == '/':
		return "path must not end with /"
	}
	for part := range strings.SplitSeq(path[1:], "/") {
		switch part {
		case "":
			return "path has an empty node name"
		case ".", "..":
			return "path has a relative node name"
		}
	}
	for _, r := range path {
		if r == 0 || r > 0 && r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 && r <= 0xffff {
			return "path has an illegal character"
		}
	}
	return ""
}

// PathKind says which row of the state a path belongs to.
type PathKind uint8

// Free paths are stored as they are; the others are rows of their own, or projections that only commands change.
const (
	Free           PathKind = iota
	PathMember              // /consumers/<group>/ids/<id>
	PathOwner               // /consumers/<group>/owners/<topic>/<name>
	PathOffset              // /consumers/<group>/offsets/<topic>/<partition>
	PathGroupDir            // the directories between them
	PathBroker              // /brokers/ids/<id>
	PathTopic               // /brokers/topics/<topic> and below
	PathConfig              // /config/<topics|clients|users|brokers>/<name>
	PathController          // /controller, /controller_epoch, /cluster/id, /latest_producer_id_block
)

// Path is a path taken apart.
type Path struct {
	Kind             PathKind
	Group, Topic     string
	Name             string // last part: member id, owner name, broker id, config name
	Type             string // of a config
	Partition        int32  // of an offset, or of a partition below a topic; -1: none
	Rest             []string
	PartitionIsValid bool
}

// ParsePath takes a valid path apart.
func ParsePath(path string) Path {
	p := Path{Partition: -1}
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	p.Name = parts[len(parts)-1]
	switch {
	case parts[0] == "consumers" && len(parts) >= 2:
		parseGroup(&p, parts)
	case len(parts) == 3 && parts[0] == "brokers" && parts[1] == "ids":
		p.Kind = PathBroker
	case len(parts) >= 3 && parts[0] == "brokers" && parts[1] == "topics":
		p.Kind, p.Topic, p.Rest = PathTopic, parts[2], parts[3:]
		if len(p.Rest) >= 2 && p.Rest[0] == "partitions" {
			p.Partition, p.PartitionIsValid = ParsePartition(p.Rest[1])
		}
	case len(parts) == 3 && parts[0] == "config" && ConfigType(parts[1]):
		p.Kind, p.Type = PathConfig, parts[1]
	case path == "/controller", path == "/controller_epoch", path == "/cluster/id", path == "/latest_producer_id_block":
		p.Kind = PathController
	}
	return p
}

// GroupConfigs is the type of configuration entities that are groups: old clients do not know it, so it is on no path.
const GroupConfigs = "groups"

// ConfigType reports whether entities of a type are rows that are shown below /config.
func ConfigType(t string) bool {
	return t == "topics" || t == "clients" || t == "users" || t == "brokers"
}

func parseGroup(p *Path, parts []string) {
	p.Group = parts[1]
	switch {
	case len(parts) == 2, len(parts) == 3 && (parts[2] == "ids" || parts[2] == "owners" || parts[2] == "offsets"):
		p.Kind = PathGroupDir
	case parts[2] == "ids" && len(parts) == 4:
		p.Kind = PathMember
	case (parts[2] == "owners" || parts[2] == "offsets") && len(parts) == 4:
		p.Kind, p.Topic = PathGroupDir, parts[3]
	case parts[2] == "owners" && len(parts) == 5:
		p.Kind, p.Topic = PathOwner, parts[3]
	case parts[2] == "offsets" && len(parts) == 5:
		if n, ok := ParsePartition(parts[4]); ok {
			p.Kind, p.Topic, p.Partition, p.PartitionIsValid = PathOffset, parts[3], n, true
		}
	}
}

// ParsePartition reads a partition number as Kafka writes it: decimal, no sign, no leading zero.
func ParsePartition(s string) (int32, bool) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != s {
		return -1, false
	}
	return int32(n), true
}
