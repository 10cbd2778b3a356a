package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Identity is what a node says about itself in every handshake.
type Identity struct {
	ClusterID          string // empty: not a member of a cluster yet
	Directory          id.DirectoryID
	Incarnation        uint64         // one run of the process
	Broker             id.BrokerID    // id.NoBroker until registered
	Epoch              id.BrokerEpoch // 0 until registered
	Version            string
	MinLevel, MaxLevel uint32
	Addr               string // advertised cluster address, host:port
}

// Peer is the other end of a connection.
type Peer struct {
	Identity
	// Member: both ends know the same cluster id. Others ("strangers") reach only handlers of HandleOpen.
	Member bool
}

// Wire format of the handshake, before anything else on a connection. The dialer sends
//
//	kind u8 | magic "bnb" | protocol u8 | length u16 | hello
//
// and the listener answers `status u8 | length u16 | body`: status 0 and its Identity, or a refusal code and a sentence.
// hello is `wanted directory | Identity`; strings are u16 length and bytes. Bytes after the known fields are ignored,
// so that later builds can append.
const (
	handshakeMagic  = "bnb"
	protocolVersion = 1
	maxHello        = 4096

	kindRaft   byte = 'R' // a raft stream
	kindRPC    byte = 'C' // calls, control class or bulk class: the listener does not care
	kindPacket byte = 'P' // memberlist packets as frames
	kindStream byte = 'S' // a memberlist stream
	kindProbe  byte = 'Q' // nothing follows the handshake (Cluster.Probe)

	statusOK            byte = 0
	statusProtocol      byte = 1 // other protocol version
	statusWrongCluster  byte = 2
	statusWrongPeer     byte = 3 // the dialer wanted another directory
	statusNotMember     byte = 4 // raft streams need a cluster id on both ends
	statusSelf          byte = 5 // a node reached itself
	statusMalformed     byte = 6
	statusNotServedHere byte = 7 // nobody accepts this kind of connection
)

func (i Identity) append(b []byte) []byte {
	b = appendString(b, i.ClusterID)
	b = appendString(b, string(i.Directory))
	b = binary.BigEndian.AppendUint64(b, i.Incarnation)
	b = binary.BigEndian.AppendUint32(b, uint32(i.Broker))
	b = binary.BigEndian.AppendUint64(b, uint64(i.Epoch))
	b = appendString(b, i.Version)
	b = binary.BigEndian.AppendUint32(b, i.MinLevel)
	b = binary.BigEndian.AppendUint32(b, i.MaxLevel)
	return appendString(b, i.Addr)
}

func readIdentity(r *reader) Identity {
	return Identity{
		ClusterID:   r.string(),
		Directory:   id.DirectoryID(r.string()),
		Incarnation: r.uint64(),
		Broker:      id.BrokerID(int32(r.uint32())),
		Epoch:       id.BrokerEpoch(r.uint64()),
		Version:     r.string(),
		MinLevel:    r.uint32(),
		MaxLevel:    r.uint32(),
		Addr:        r.string(),
	}
}

func writeHello(w io.Writer, kind byte, want id.DirectoryID, self Identity) error {
	body := self.append(appendString(nil, string(want)))
	if len(body) > maxHello {
		return fmt.Errorf("hello of %d bytes, at most %d: shorten the advertised address or version", len(body), maxHello)
	}
	b := append([]byte{kind}, handshakeMagic...)
	b = append(b, protocolVersion)
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	_, err := w.Write(append(b, body...))
	return err
}

// readHello reads all but the kind byte. refusal is the status to answer with when err is set, 0 to answer nothing.
func readHello(r io.Reader) (want id.DirectoryID, peer Identity, refusal byte, err error) {
	var head [6]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", peer, 0, err
	}
	if string(head[:3]) != handshakeMagic {
		return "", peer, 0, fmt.Errorf("not a barnabas node (first bytes %x)", head[:3])
	}
	if head[3] != protocolVersion {
		return "", peer, statusProtocol, fmt.Errorf("cluster protocol version %d here, %d there: bring both nodes to one release",
			protocolVersion, head[3])
	}
	n := int(binary.BigEndian.Uint16(head[4:]))
	if n > maxHello {
		return "", peer, statusMalformed, fmt.Errorf("hello of %d bytes", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return "", peer, 0, err
	}
	d := &reader{b: body}
	want = id.DirectoryID(d.string())
	peer = readIdentity(d)
	if d.bad || peer.Directory == "" {
		return "", peer, statusMalformed, errors.New("malformed hello")
	}
	return want, peer, statusOK, nil
}

func writeWelcome(w io.Writer, status byte, body []byte) error {
	if len(body) > maxHello {
		body = body[:maxHello]
	}
	b := binary.BigEndian.AppendUint16([]byte{status}, uint16(len(body)))
	_, err := w.Write(append(b, body...))
	return err
}

func readWelcome(r io.Reader) (Identity, error) {
	var head [3]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Identity{}, fmt.Errorf("closed during the handshake: %w", err)
	}
	n := int(binary.BigEndian.Uint16(head[1:]))
	if n > maxHello {
		return Identity{}, fmt.Errorf("%w: welcome of %d bytes", ErrHandshake, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return Identity{}, fmt.Errorf("closed during the handshake: %w", err)
	}
	switch head[0] {
	case statusOK:
	case statusWrongPeer:
		return Identity{}, fmt.Errorf("%w: %s", ErrWrongPeer, body)
	default:
		return Identity{}, fmt.Errorf("%w: %s", ErrHandshake, body)
	}
	d := &reader{b: body}
	peer := readIdentity(d)
	if d.bad {
		return Identity{}, fmt.Errorf("%w: malformed welcome", ErrHandshake)
	}
	return peer, nil
}

// judge decides whether self serves a connection of that kind from peer.
func judge(self Identity, kind byte, want id.DirectoryID, peer Identity) (status byte, why string) {
	switch {
	case want != "" && want != self.Directory:
		return statusWrongPeer, fmt.Sprintf("directory %s lives here, not %s: the address is out of date", self.Directory, want)
	case peer.Directory == self.Directory && peer.Incarnation == self.Incarnation:
		return statusSelf, "the address is the dialer's own"
	case peer.ClusterID != "" && self.ClusterID != "" && peer.ClusterID != self.ClusterID:
		return statusWrongCluster, fmt.Sprintf("cluster id %s here, %s there: the address or the data directory belongs to another cluster",
			self.ClusterID, peer.ClusterID)
	case kind == kindRaft && (peer.ClusterID == "" || self.ClusterID == ""):
		return statusNotMember, "raft streams need a cluster id on both ends"
	}
	return statusOK, ""
}

func isMember(self, peer Identity) bool {
	return self.ClusterID != "" && self.ClusterID == peer.ClusterID
}
