// The room map: pointing at a room shows what it imports and who imports it.
document.querySelectorAll(".rooms").forEach((map) => {
  const rooms = [...map.querySelectorAll(".room")];
  const imports = (room) => room.dataset.imports.split(" ");
  const show = (room) => {
    map.classList.toggle("pointed", room !== null);
    for (const other of rooms) {
      const name = other.dataset.room;
      other.classList.toggle("here", other === room);
      other.classList.toggle("imported", room !== null && imports(room).includes(name));
      other.classList.toggle("importer", room !== null && imports(other).includes(room.dataset.room));
    }
    for (const arrow of map.querySelectorAll(".import")) {
      const ends = [arrow.dataset.from, arrow.dataset.to];
      arrow.classList.toggle("here", room !== null && ends.includes(room.dataset.room));
    }
  };
  for (const room of rooms) {
    for (const event of ["mouseenter", "focus"]) room.addEventListener(event, () => show(room));
    for (const event of ["mouseleave", "blur"]) room.addEventListener(event, () => show(null));
  }
});
