package jute_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"runtime"
	"testing"

	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

type record interface {
	Decode([]byte) error
	Append([]byte) []byte
}

func records() []record {
	acl := []jute.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}, {Perms: 1, Scheme: "digest", ID: "a:b"}}
	return []record{
		&jute.ConnectRequest{LastZxidSeen: 7, TimeoutMs: 6000, SessionID: 9, Password: make([]byte, 16)},
		&jute.ConnectRequest{Password: []byte{}, HasReadOnly: true, ReadOnly: true},
		&jute.ConnectResponse{TimeoutMs: 6000, SessionID: -5, Password: []byte{1}, HasReadOnly: true},
		&jute.CreateRequest{Path: "/a", Data: nil, ACL: acl, Flags: 3},
		&jute.CreateRequest{Path: "/a", Data: []byte{}, ACL: acl[:1]},
		&jute.PathVersion{Path: "/a/b", Version: -1},
		&jute.PathWatch{Path: "/a/b", Watch: true},
		&jute.SetDataRequest{Path: "/a", Data: []byte("x"), Version: 4},
		&jute.SetACLRequest{Path: "/a", ACL: acl, Version: 4},
		&jute.Path{Path: "/"},
		&jute.SetWatches{RelativeZxid: 3, Data: []string{"/a"}, Exist: []string{"/b", "/c"}},
		&jute.AuthRequest{Scheme: "digest", Auth: []byte("u:p")},
	}
}

func TestRoundTrip(t *testing.T) {
	for _, r := range records() {
		body := r.Append(nil)
		got := reflect.New(reflect.TypeOf(r).Elem()).Interface().(record)
		if err := got.Decode(body); err != nil {
			t.Fatalf("%T: %v", r, err)
		}
		if !reflect.DeepEqual(r, got) {
			t.Fatalf("%T: got %+v, want %+v", r, got, r)
		}
		for cut := range body {
			err := got.Decode(body[:cut])
			if cr, ok := r.(*jute.ConnectRequest); ok && cr.HasReadOnly && cut == len(body)-1 {
				continue // the byte is optional
			}
			if cr, ok := r.(*jute.ConnectResponse); ok && cr.HasReadOnly && cut == len(body)-1 {
				continue
			}
			if !errors.Is(err, jute.ErrShort) && !errors.Is(err, jute.ErrLength) {
				t.Fatalf("%T cut at %d of %d: %v", r, cut, len(body), err)
			}
		}
	}
}

// A connect request of zookeeper 3.4 (45 bytes) and of samuel/go-zookeeper (44), as they go over the wire.
func TestConnectGolden(t *testing.T) {
	short := "00000000" + "0000000000000000" + "00001770" + "0000000000000000" + "00000010" +
		"00000000000000000000000000000000"
	for _, c := range []struct {
		hex string
		has bool
	}{{short, false}, {short + "00", true}} {
		body, _ := hex.DecodeString(c.hex)
		var r jute.ConnectRequest
		if err := r.Decode(body); err != nil || r.TimeoutMs != 6000 || r.HasReadOnly != c.has || len(r.Password) != 16 {
			t.Fatalf("%+v, %v", r, err)
		}
		if !bytes.Equal(r.Append(nil), body) {
			t.Fatalf("%x", r.Append(nil))
		}
	}
}

func TestStatAndEvent(t *testing.T) {
	want := jute.Stat{Czxid: 1, Mzxid: 2, Ctime: 3, Mtime: 4, Version: 5, Cversion: 6, Aversion: 7, EphemeralOwner: 8,
		DataLength: 9, NumChildren: 10, Pzxid: 11}
	b := want.Append(nil)
	d := jute.NewDecoder(b)
	if got := d.Stat(); got != want || len(b) != 68 || d.Err() != nil {
		t.Fatalf("%+v, %d bytes, %v", got, len(b), d.Err())
	}
	f := jute.Event{Type: jute.NodeDeleted, Path: "/x"}.AppendFrame(nil)
	if got := hex.EncodeToString(f); got != "0000001e"+"ffffffff"+"ffffffffffffffff"+"00000000"+"00000002"+"00000003"+"000000022f78" {
		t.Fatal(got)
	}
}

func TestLengthsAreBounded(t *testing.T) {
	for _, b := range [][]byte{
		{0x7f, 0xff, 0xff, 0xff}, {0x80, 0, 0, 0}, {0xff, 0xff, 0xff, 0xfe}, {0, 0, 0, 2, 'x'},
	} {
		d := jute.NewDecoder(b)
		if d.Bytes(); !errors.Is(d.Err(), jute.ErrLength) {
			t.Errorf("%x: %v", b, d.Err())
		}
	}
	d := jute.NewDecoder(append([]byte{0, 0xff, 0xff, 0xff}, make([]byte, 100)...))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d.ACLs()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("a false count of 16 million allocates %d bytes", n)
	}
}

func FuzzDecode(f *testing.F) {
	for i, r := range records() {
		f.Add(uint8(i), r.Append(nil))
	}
	f.Fuzz(func(t *testing.T, kind uint8, body []byte) {
		all := records()
		r := all[int(kind)%len(all)]
		if r.Decode(body) != nil {
			return
		}
		// What decodes must survive another round trip: decode(append(x)) is x.
		again := reflect.New(reflect.TypeOf(r).Elem()).Interface().(record)
		if err := again.Decode(r.Append(nil)); err != nil || !reflect.DeepEqual(r, again) {
			t.Fatalf("%T: %+v, then %+v, %v", r, r, again, err)
		}
	})
}
