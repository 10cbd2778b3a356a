package proxy

import (
	"encoding/binary"
	"fmt"
	"io"
)

// ClusterPeer identifies a barnabas node by the hello that it sends on another node's cluster port (cluster/identity.go):
// kind, "bnb", protocol, length, and then strings: the wanted directory, the cluster id, the sender's directory id. names
// maps directory ids to the names of ends.
func ClusterPeer(names map[string]string) Identify {
	return func(r io.Reader) (string, error) {
		var head [7]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return "", err
		}
		if string(head[1:4]) != "bnb" {
			return "", fmt.Errorf("no hello of a node: % x", head)
		}
		body := make([]byte, binary.BigEndian.Uint16(head[5:]))
		if _, err := io.ReadFull(r, body); err != nil {
			return "", err
		}
		var directory string
		for range 3 { // wanted, cluster id, own directory
			if len(body) < 2 || len(body) < 2+int(binary.BigEndian.Uint16(body)) {
				return "", fmt.Errorf("a hello that is too short")
			}
			size := int(binary.BigEndian.Uint16(body))
			directory, body = string(body[2:2+size]), body[2+size:]
		}
		name, ok := names[directory]
		if !ok {
			return "", fmt.Errorf("a node with the unknown directory id %q", directory)
		}
		return name, nil
	}
}
