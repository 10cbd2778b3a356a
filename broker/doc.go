// Package broker is the Kafka listener: it frames, decodes, dispatches and answers Kafka's requests.
//
// One file per API key (00_produce.go, 01_fetch.go, ...) holds its handler and the one line that declares the versions it
// serves; ApiVersions derives from those lines. kmsg decodes and encodes; this package adds what kmsg leaves to a server: a
// bound on every frame before it is decoded, order, and the rules of old versions.
//
// Invariants:
//   - Responses of one connection leave in the order of its requests. Requests are read ahead up to a bound. A handler runs when
//     all requests before it have been answered; only Produce appends when it is read, so that pipelined producers share syncs.
//   - No input panics, and memory that a peer can hold is bounded: by the cap of its API before a frame is read, by a budget that
//     all connections share while a frame is held, and by MaxInFlight.
//   - An unknown ApiVersions version is answered (error 35 in a version 0 body); any other request that cannot be decoded or is
//     not served ends the connection after one log line that names client, address, API and version.
//
// Goroutines: each Serve owns one per connection; a connection owns its writer. Each waits for what it started, Stop for all.
// The only state between requests is the block of producer ids, behind a lock.
package broker
