package jute

import "strconv"

// Op is a request's type (org.apache.zookeeper.ZooDefs.OpCode).
type Op int32

// The operations this package has records for, and those that are known by name only.
const (
	OpNotify       Op = 0
	OpCreate       Op = 1
	OpDelete       Op = 2
	OpExists       Op = 3
	OpGetData      Op = 4
	OpSetData      Op = 5
	OpGetACL       Op = 6
	OpSetACL       Op = 7
	OpGetChildren  Op = 8
	OpSync         Op = 9
	OpPing         Op = 11
	OpGetChildren2 Op = 12
	OpCheck        Op = 13
	OpMulti        Op = 14
	OpCreate2      Op = 15
	OpReconfig     Op = 16
	OpAuth         Op = 100
	OpSetWatches   Op = 101
	OpSASL         Op = 102
	OpClose        Op = -11
)

var opNames = map[Op]string{
	OpNotify: "notify", OpCreate: "create", OpDelete: "delete", OpExists: "exists", OpGetData: "getData",
	OpSetData: "setData", OpGetACL: "getACL", OpSetACL: "setACL", OpGetChildren: "getChildren", OpSync: "sync",
	OpPing: "ping", OpGetChildren2: "getChildren2", OpCheck: "check", OpMulti: "multi", OpCreate2: "create2",
	OpReconfig: "reconfig", OpAuth: "auth", OpSetWatches: "setWatches", OpSASL: "sasl", OpClose: "closeSession",
}

func (o Op) String() string {
	if s, ok := opNames[o]; ok {
		return s
	}
	return "op " + strconv.Itoa(int(o))
}

// Code is an error number of a reply (org.apache.zookeeper.KeeperException.Code).
type Code int32

// The codes a server of this kind sends.
const (
	OK                      Code = 0
	SystemError             Code = -1
	ConnectionLoss          Code = -4
	MarshallingError        Code = -5
	Unimplemented           Code = -6
	OperationTimeout        Code = -7
	BadArguments            Code = -8
	NoNode                  Code = -101
	NoAuth                  Code = -102
	BadVersion              Code = -103
	NoChildrenForEphemerals Code = -108
	NodeExists              Code = -110
	NotEmpty                Code = -111
	SessionExpired          Code = -112
	InvalidACL              Code = -114
	AuthFailed              Code = -115
	SessionMoved            Code = -118
)

var codeNames = map[Code]string{
	OK: "OK", SystemError: "SYSTEMERROR", ConnectionLoss: "CONNECTIONLOSS", MarshallingError: "MARSHALLINGERROR",
	Unimplemented: "UNIMPLEMENTED", OperationTimeout: "OPERATIONTIMEOUT", BadArguments: "BADARGUMENTS",
	NoNode: "NONODE", NoAuth: "NOAUTH", BadVersion: "BADVERSION", NoChildrenForEphemerals: "NOCHILDRENFOREPHEMERALS",
	NodeExists: "NODEEXISTS", NotEmpty: "NOTEMPTY", SessionExpired: "SESSIONEXPIRED", InvalidACL: "INVALIDACL",
	AuthFailed: "AUTHFAILED", SessionMoved: "SESSIONMOVED",
}

func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return "code " + strconv.Itoa(int(c))
}

// EventType is what a watch tells (org.apache.zookeeper.Watcher.Event.EventType).
type EventType int32

// The four kinds of node events.
const (
	NodeCreated         EventType = 1
	NodeDeleted         EventType = 2
	NodeDataChanged     EventType = 3
	NodeChildrenChanged EventType = 4
)

// Reserved xids: a client's own are positive, except that JVM clients use -8 for setWatches.
const (
	XidEvent int32 = -1
	XidPing  int32 = -2
	XidAuth  int32 = -4
)

// StateConnected is the only connection state that an event carries (KeeperState.SyncConnected).
const StateConnected int32 = 3

// Create flags (CreateMode.toFlag); higher ones are containers and time-to-live nodes.
const (
	FlagEphemeral  int32 = 1
	FlagSequential int32 = 2
)

// ConnectRequest opens or resumes a session. It is a frame without a header.
type ConnectRequest struct {
	Protocol     int32
	LastZxidSeen int64
	TimeoutMs    int32
	SessionID    int64
	Password     []byte
	ReadOnly     bool
	HasReadOnly  bool // 44-byte requests of ZooKeeper 3.3, samuel/go-zookeeper and node lack the byte
}

// Decode reads the whole body.
func (r *ConnectRequest) Decode(body []byte) error {
	d := NewDecoder(body)
	*r = ConnectRequest{}
	r.Protocol = d.Int()
	r.LastZxidSeen = d.Long()
	r.TimeoutMs = d.Int()
	r.SessionID = d.Long()
	r.Password = d.Bytes()
	r.HasReadOnly = d.Len() > 0
	if r.HasReadOnly {
		r.ReadOnly = d.Bool()
	}
	return d.Err()
}

// Append appends the body.
func (r *ConnectRequest) Append(b []byte) []byte {
	b = AppendInt(b, r.Protocol)
	b = AppendLong(b, r.LastZxidSeen)
	b = AppendInt(b, r.TimeoutMs)
	b = AppendLong(b, r.SessionID)
	b = AppendBytes(b, r.Password)
	if r.HasReadOnly {
		b = AppendBool(b, r.ReadOnly)
	}
	return b
}

// ConnectResponse answers it; timeout 0, session 0 and a zero password mean that the session is gone.
type ConnectResponse struct {
	Protocol    int32
	TimeoutMs   int32
	SessionID   int64
	Password    []byte
	ReadOnly    bool
	HasReadOnly bool // exactly when the request had one
}

// Decode reads the whole body.
func (r *ConnectResponse) Decode(body []byte) error {
	d := NewDecoder(body)
	*r = ConnectResponse{}
	r.Protocol = d.Int()
	r.TimeoutMs = d.Int()
	r.SessionID = d.Long()
	r.Password = d.Bytes()
	r.HasReadOnly = d.Len() > 0
	if r.HasReadOnly {
		r.ReadOnly = d.Bool()
	}
	return d.Err()
}

// Append appends the body.
func (r *ConnectResponse) Append(b []byte) []byte {
	b = AppendInt(b, r.Protocol)
	b = AppendInt(b, r.TimeoutMs)
	b = AppendLong(b, r.SessionID)
	b = AppendBytes(b, r.Password)
	if r.HasReadOnly {
		b = AppendBool(b, r.ReadOnly)
	}
	return b
}

// RequestHeader precedes every request but the first.
type RequestHeader struct {
	Xid int32
	Op  Op
}

// DecodeRequest reads a request's header and returns what follows it.
func DecodeRequest(body []byte) (h RequestHeader, rest []byte, err error) {
	d := NewDecoder(body)
	h.Xid = d.Int()
	h.Op = Op(d.Int())
	return h, d.rest, d.Err()
}

// Append appends the header.
func (h RequestHeader) Append(b []byte) []byte { return AppendInt(AppendInt(b, h.Xid), int32(h.Op)) }

// ReplyHeader precedes every reply and event.
type ReplyHeader struct {
	Xid  int32
	Zxid int64
	Err  Code
}

// DecodeReply reads a reply's header and returns what follows it.
func DecodeReply(body []byte) (h ReplyHeader, rest []byte, err error) {
	d := NewDecoder(body)
	h.Xid = d.Int()
	h.Zxid = d.Long()
	h.Err = Code(d.Int())
	return h, d.rest, d.Err()
}

// Append appends the header.
func (h ReplyHeader) Append(b []byte) []byte {
	return AppendInt(AppendLong(AppendInt(b, h.Xid), h.Zxid), int32(h.Err))
}

// Stat is a node's metadata as clients see it.
type Stat struct {
	Czxid, Mzxid   int64
	Ctime, Mtime   int64 // milliseconds since 1970
	Version        int32
	Cversion       int32 // 2 x creates - children, as clients see it (DataNode.copyStat)
	Aversion       int32
	EphemeralOwner int64
	DataLength     int32
	NumChildren    int32
	Pzxid          int64
}

// Append appends the 68 bytes of a Stat.
func (s *Stat) Append(b []byte) []byte {
	b = AppendLong(AppendLong(b, s.Czxid), s.Mzxid)
	b = AppendLong(AppendLong(b, s.Ctime), s.Mtime)
	b = AppendInt(AppendInt(AppendInt(b, s.Version), s.Cversion), s.Aversion)
	b = AppendLong(b, s.EphemeralOwner)
	b = AppendInt(AppendInt(b, s.DataLength), s.NumChildren)
	return AppendLong(b, s.Pzxid)
}

// Stat reads a Stat.
func (d *Decoder) Stat() Stat {
	var s Stat
	s.Czxid, s.Mzxid = d.Long(), d.Long()
	s.Ctime, s.Mtime = d.Long(), d.Long()
	s.Version, s.Cversion, s.Aversion = d.Int(), d.Int(), d.Int()
	s.EphemeralOwner = d.Long()
	s.DataLength, s.NumChildren = d.Int(), d.Int()
	s.Pzxid = d.Long()
	return s
}

// ACL is one entry of a node's access list.
type ACL struct {
	Perms  int32 // read 1, write 2, create 4, delete 8, admin 16
	Scheme string
	ID     string
}

// PermAll is every permission.
const PermAll int32 = 31

// OpenACL lets everybody do everything: the list of a node made without one.
var OpenACL = []ACL{{Perms: PermAll, Scheme: "world", ID: "anyone"}}

// ACLs reads a list of ACLs; null reads as none.
func (d *Decoder) ACLs() []ACL {
	n := d.length(12)
	if n <= 0 {
		return nil
	}
	out := make([]ACL, 0, n)
	for range n {
		out = append(out, ACL{Perms: d.Int(), Scheme: d.String(), ID: d.String()})
	}
	if d.err != nil {
		return nil
	}
	return out
}

// AppendACLs appends a list of ACLs.
func AppendACLs(b []byte, acls []ACL) []byte {
	b = AppendInt(b, int32(len(acls)))
	for _, a := range acls {
		b = AppendString(AppendString(AppendInt(b, a.Perms), a.Scheme), a.ID)
	}
	return b
}

// CreateRequest is the body of OpCreate.
type CreateRequest struct {
	Path  string
	Data  []byte // nil is null, which is not empty
	ACL   []ACL
	Flags int32
}

// Decode reads the body; Data aliases it.
func (r *CreateRequest) Decode(body []byte) error {
	d := NewDecoder(body)
	*r = CreateRequest{Path: d.String(), Data: d.Bytes(), ACL: d.ACLs(), Flags: d.Int()}
	return d.Err()
}

// Append appends the body.
func (r *CreateRequest) Append(b []byte) []byte {
	b = AppendBytes(AppendString(b, r.Path), r.Data)
	return AppendInt(AppendACLs(b, r.ACL), r.Flags)
}

// PathVersion is the body of OpDelete.
type PathVersion struct {
	Path    string
	Version int32 // -1: any
}

// Decode reads the body.
func (r *PathVersion) Decode(body []byte) error {
	d := NewDecoder(body)
	*r = PathVersion{Path: d.String(), Version: d.Int()}
	return d.Err()
}

// Append appends the body.
func (r *PathVersion) Append(b []byte) []byte { return AppendInt(AppendString(b, r.Path), r.Version) }

// PathWatch is the body of OpExists, OpGetData, OpGetChildren and OpGetChildren2.
type PathWatch struct {
	Path  string
	Watch bool
}

// Decode reads the body.
func (r *PathWatch) Decode(body []byte) error {
	d := NewDecoder(body)
	*r = PathWatch{Path: d.String(), Watch: d.Bool()}
	return d.Err()
}

// Append appends the body.
func (r *PathWatch) Append(b []byte) []byte { return AppendBool(AppendString(b, r.Path), r.Watch) }

// SetDataRequest is the body of OpSetData.
type SetDataRequest struct {
	Path    string
	Data    []byte
	Version int32 // -1: any
}

// Decode reads the body; Data aliases it.
func (r *SetDataRequest) Decode(body []byte) error {
	d := NewDecoder(body)
	*r = SetDataRequest{Path: d.String(), Data: d.Bytes(), Version: d.Int()}
	return d.Err()
}

// Append appends the body.
func (r *SetDataRequest) Append(b []byte) []byte {
	return AppendInt(AppendBytes(AppendString(b, r.Path), r.Data), r.Version)
}

// SetACLRequest is the body of OpSetACL.
type SetACLRequest struct {
	Path    string
	ACL     []ACL
	Version int32 // of the list (aversion); -1: any
}

// Decode reads the body.
func (r *SetACLRequest) Decode(body []byte) error {
	d := NewDecoder(body)
	*r = SetACLRequest{Path: d.String(), ACL: d.ACLs(), Version: d.Int()}
	return d.Err()
}

// Append appends the body.
func (r *SetACLRequest) Append(b []byte) []byte {
	return AppendInt(AppendACLs(AppendString(b, r.Path), r.ACL), r.Version)
}

// Path is the body of OpGetACL and OpSync.
type Path struct{ Path string }

// Decode reads the body.
func (r *Path) Decode(body []byte) error {
	d := NewDecoder(body)
	r.Path = d.String()
	return d.Err()
}

// Append appends the body.
func (r *Path) Append(b []byte) []byte { return AppendString(b, r.Path) }

// SetWatches is the body of OpSetWatches: a client's watches after a reconnect.
type SetWatches struct {
	RelativeZxid       int64 // the last change the client has seen
	Data, Exist, Child []string
}

// Decode reads the body.
func (r *SetWatches) Decode(body []byte) error {
	d := NewDecoder(body)
	*r = SetWatches{RelativeZxid: d.Long(), Data: d.Strings(), Exist: d.Strings(), Child: d.Strings()}
	return d.Err()
}

// Append appends the body.
func (r *SetWatches) Append(b []byte) []byte {
	b = AppendStrings(AppendLong(b, r.RelativeZxid), r.Data)
	return AppendStrings(AppendStrings(b, r.Exist), r.Child)
}

// AuthRequest is the body of OpAuth.
type AuthRequest struct {
	Type   int32
	Scheme string
	Auth   []byte
}

// Decode reads the body; Auth aliases it.
func (r *AuthRequest) Decode(body []byte) error {
	d := NewDecoder(body)
	*r = AuthRequest{Type: d.Int(), Scheme: d.String(), Auth: d.Bytes()}
	return d.Err()
}

// Append appends the body.
func (r *AuthRequest) Append(b []byte) []byte {
	return AppendBytes(AppendString(AppendInt(b, r.Type), r.Scheme), r.Auth)
}

// Event is what a fired watch sends.
type Event struct {
	Type EventType
	Path string
}

// Decode reads the body of an event, which follows a reply header with XidEvent.
func (e *Event) Decode(body []byte) error {
	d := NewDecoder(body)
	e.Type = EventType(d.Int())
	d.Int()
	e.Path = d.String()
	return d.Err()
}

// AppendFrame appends a whole frame: length, header, event. The zxid is -1 as in ZooKeeper up to 3.8, which is
// what the old clients were written against.
func (e Event) AppendFrame(b []byte) []byte {
	b, start := BeginFrame(b)
	b = ReplyHeader{Xid: XidEvent, Zxid: -1}.Append(b)
	b = AppendString(AppendInt(AppendInt(b, int32(e.Type)), StateConnected), e.Path)
	return EndFrame(b, start)
}
